"""S3, Google Cloud Storage and Azure Blob Storage without AIStore: `store` on top of obstore.

The only package that imports obstore, the Python face of Rust's object_store, which signs, pages and
knows the credentials of each cloud; and boto3, which knows AWS's profiles.
"""
