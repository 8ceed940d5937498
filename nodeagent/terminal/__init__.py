"""What people see in a terminal: pages of lines, drawn to scale.

The modules here turn values into `Line`s of spans whose tone says what they mean. `page` writes
them as plain text, or paints them. Nothing here asks the
driver, reads a file or decides an exit code.
"""
