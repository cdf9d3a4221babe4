"""Places for bytes: one promise (base), one backend a file."""
