"""Which loops are compiled, and how do their matrices lie in memory?"""
