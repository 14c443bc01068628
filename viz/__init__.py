"""What people see: figures, panels, pages."""
