"""What was measured, as one page for people: results are read, drawn, put into words, and rendered."""
