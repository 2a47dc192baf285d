"""Before and after a mount: the device, the mountpoint, the kernel's settings, a daemon that died."""
