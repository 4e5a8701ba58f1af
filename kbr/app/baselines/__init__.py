"""What a user would pick instead of a kernel filter: regression on one frame, a Kalman filter."""
