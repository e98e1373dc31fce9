"""What the estimators share: stores, backends, data preparation, the reader."""
