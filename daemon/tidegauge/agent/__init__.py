"""The agent on the board: supervises workers, decides, captures, sends. Imports no runtime and no OpenCV."""
