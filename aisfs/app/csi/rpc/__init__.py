"""gRPC: the calls of the Container Storage Interface. Only this package imports grpc and protobuf.

`csi_pb2` is generated from `csi.proto`, which says how.
"""
