"""What does a layer do to its input: by frequency, as a matrix, or without one?"""
