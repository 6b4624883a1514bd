"""Steps: attempts on the loop, in threads and in OS processes; effects, and their undo."""
