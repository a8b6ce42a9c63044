"""Files and logs."""
