"""HTTP itself: the application, what is read, how errors are answered."""
