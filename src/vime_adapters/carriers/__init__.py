"""What carries weights between processes where there is no NCCL and no CUDA: both ends of it."""
