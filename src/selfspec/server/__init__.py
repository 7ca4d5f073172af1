"""An OpenAI-compatible server with batched self-speculation; needs the extra ``serve``."""
