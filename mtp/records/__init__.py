"""What leaves `mtp`: plain frozen records of numbers and text, and their JSON."""
