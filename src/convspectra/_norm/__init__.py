"""Between which bounds does the norm of a layer lie, rounding included?"""
