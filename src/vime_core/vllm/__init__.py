"""What a vLLM release accepts and means, as data."""
