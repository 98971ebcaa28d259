"""What do the layers of a network do, side by side?"""
