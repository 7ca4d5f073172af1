"""What is installed here, which runtime runs, and what does not go together: `selfspec doctor`."""
