"""What Vime knows of an installed vLLM: its CPU entry point, its flag catalogues, and a tiny model to try it with."""
