"""The GPU back end: CUDA kernels of the sampled methods, compiled by CuPy for the card found."""
