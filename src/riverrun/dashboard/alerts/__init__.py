"""The alerts page: follows the state topic, shows it live, and takes user actions."""
