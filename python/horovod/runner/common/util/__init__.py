"""Parts of the launcher other packages import."""
