"""The CSI node driver: mounts volumes into the pods of Kubernetes.

`rpc.services` takes the calls of kubelet, `targets` mounts and unmounts, and hands each mount to the `mounter`, another
process without rights, whose children serve the mounts. So the driver can be replaced while volumes are used.
"""
