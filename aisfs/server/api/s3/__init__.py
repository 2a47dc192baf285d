"""The S3 API below `/s3`, path style, over the same storage as AIStore's own API.

`api` is the entrance. It follows AIStore's `/s3`, and Amazon's behaviour where nothing is known of AIStore's or
where `Kindness.like_amazon` says so. Signatures are accepted and not verified, as in AIStore; a payload
is verified against every checksum that comes with it.
"""
