"""What all frameworks share: life cycle, process sets, errors, elastic state."""
