"""Plain web servers, WebDAV and Hugging Face as stores, to be read.

`store` is the entrance for web servers, `hub` that for Hugging Face.
"""
