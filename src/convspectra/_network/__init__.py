"""By how much can a whole network stretch a change of its input?"""
