"""What does the command `convspectra` take, do and print?"""
