"""Who may come in: logins beyond loopback, sessions, single sign-on, limits."""
