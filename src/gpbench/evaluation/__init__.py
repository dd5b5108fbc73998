"""What a fit predicts, how good that is, and how methods compare: NumPy, SciPy and pandas, no torch."""
