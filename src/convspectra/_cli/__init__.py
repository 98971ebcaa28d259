"""What the commands do; `cli` chooses one and turns failures into exit codes."""
