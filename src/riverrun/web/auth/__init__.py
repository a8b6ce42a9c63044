"""Authentication: logins beyond loopback, sessions, single sign-on, rate limits."""
