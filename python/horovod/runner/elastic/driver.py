"""How often the driver of an elastic job looks for hosts."""
DISCOVER_HOSTS_FREQUENCY_SECS = 1.0     # read before each look
