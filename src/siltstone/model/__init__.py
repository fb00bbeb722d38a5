"""What things are: frozen values and pure functions, no I/O."""
