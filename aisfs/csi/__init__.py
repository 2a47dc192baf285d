"""The CSI node driver: mounts volumes into the pods of Kubernetes.

`node` has its commands. `services` takes the calls of kubelet, `targets` mounts and unmounts, and hands each mount to
the `mounter`, another process without rights, whose children serve the mounts. So the driver can be replaced
while volumes are used. `csi_pb2` is generated from `csi.proto`, which says how.
"""
