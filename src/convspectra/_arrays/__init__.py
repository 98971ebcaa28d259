"""Which library does an array belong to, and how many threads may work on it?"""
