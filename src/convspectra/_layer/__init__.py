"""What is stated about a layer, and what does it read?"""
