"""Questions in SQL: what is allowed, who answers, what comes back."""
