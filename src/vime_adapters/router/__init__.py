"""vllm-router: its own HTTP routes, and its command line checked against the installed release."""
