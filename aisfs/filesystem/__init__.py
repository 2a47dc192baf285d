"""The tree in the kernel's words, without the kernel: numbers and names in, attributes out."""
