"""The report: runs' folders as one HTML file that opens from disk, and tables of many runs."""
