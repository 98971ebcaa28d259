"""Which kernel near this one has a norm within a bound?"""
