"""The S3 API below `/s3`, path style, over the same storage as AIStore's own API.

`api` is the entrance. It only reads: that is what AIStore's `/s3` is of use for to clients that do not send a body
through a redirect. It follows AIStore's, and Amazon's where `Kindness.like_amazon` says so. Signatures are accepted
and not verified, as in AIStore.
"""
