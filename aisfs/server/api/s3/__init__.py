"""The S3 API below `/s3`, path style, over the same storage as AIStore's own API.

`api` is the entrance. It only reads: most clients cannot write by AIStore's `/s3` either, since they send no body
through a redirect. It answers as AIStore's, and as Amazon's where `Kindness.like_amazon` says so. Signatures are
accepted and not verified, as in AIStore.
"""
