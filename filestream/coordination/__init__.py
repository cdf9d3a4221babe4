"""Small documents with compare-and-set: one promise (base), one store a file."""
