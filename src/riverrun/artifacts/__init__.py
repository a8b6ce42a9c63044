"""The JVM parts: lock files, the downloader and its cache, and the Java that runs them."""
