"""What people are asked, and what became of what jobs did to the world."""
