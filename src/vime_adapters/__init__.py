"""The adapters: thin hands that carry a launch plan out in the world; every decision lives in `vime_core`."""
