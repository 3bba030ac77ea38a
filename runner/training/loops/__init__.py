"""The loops: functions of a job that train, evaluate, debug or tune."""
