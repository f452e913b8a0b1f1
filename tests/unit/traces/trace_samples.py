"""A small valid file of every trace format, shared by the tests of the readers."""

from __future__ import annotations

import json


def _gavel_row(job_type: str, command: str, folder: str, *rest: object) -> str:
    return "\t".join([job_type, command, folder, "--num_steps", "1", *map(str, rest)]) + "\n"


GAVEL = _gavel_row(
    "ResNet-18 (batch size 32)", "python3 main.py --data_dir=%s/cifar10", "image/cifar10", 1000, 2, 1, "-1.000000", 0
) + _gavel_row(
    "LM (batch size 10)", "python3 main.py --cuda --data %s/wikitext2", "language_modeling", 500, 1, 5, "3600.0", 17
)
SHOCKWAVE = _gavel_row(
    "LM (batch size 10)", "main.py --data %s/wikitext2", "lm", 134583, 1, "gns", 1, "-1.000000", 1418, 0
) + _gavel_row(
    "ResNet-50 (batch size 64)", "main.py %s/imagenet/", "ic", 4184, 4, "static", 1, "1.5", 2000, 64
) + _gavel_row(
    "ResNet-18 (batch size 32)", "main.py --data_dir=%s/cifar10", "ic", 99, 2, "accordion", 1, "-1", 300, 70
)  # fmt: skip
TIRESIAS = """\
job_id,num_gpu,submit_time,iterations,model_name,duration,interval
0,1,0,606,vgg19,164,30
1,8,30,133,vgg11,147.9,23
"""
TF_JOB = """\
job_id,num_gpu,submit_time,start_time,duration,model_size,aggr_interval,model_name,model_scale
10,12,11,14,20,400,0,vgg19,1
10,12,11,14,20,400,0,vgg19,1"""
MURI = """\
job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,resource_time_0,priority
0,8,0,10956,gpt2,4,5095000,91000,437,0.6,0
1,8,1534500,1463,vgg16,16,281000,28000,214,82,1
"""
ELASTICFLOW = """\
job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration,best_effort
0,0,77215,resnet50,4426,256,1,3930,0
1,2811,94898,resnet50,9179,128,2,4830,1
"""
POLLUX = """\
name,time,application,num_replicas,batch_size
deepspeech2-0,110,deepspeech2,6,320
cifar10-1,356,cifar10,16,4096
"""
PHILLY = """\
timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 06:01:55,2951.0,4,11804.0,6214e9
"""
PHILLY_JSON = json.dumps(
    [
        {
            "status": "Pass",
            "vc": "ee9e8c",
            "jobid": "application_1",
            "attempts": [
                {
                    "start_time": "2017-10-09 07:02:22",
                    "end_time": "2017-10-09 07:03:22",
                    "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu0"]}],
                },
                {"start_time": "2017-10-09 08:00:00", "end_time": "2017-10-09 08:00:10", "detail": []},
            ],
            "submitted_time": "2017-10-09 07:01:55",
            "user": "ce2f2a",
        },
        {
            "status": "Killed",
            "vc": "a",
            "jobid": "application_2",
            "attempts": [],
            "submitted_time": "None",
            "user": "u",
        },
        {
            "status": "Killed",
            "vc": None,
            "jobid": "application_3",
            "attempts": [
                {"start_time": "2017-10-09 07:02:22", "end_time": None, "detail": [{"ip": "m", "gpus": ["g"]}]}
            ],
            "submitted_time": "2017-10-09 07:00:55",
            "user": "u",
        },
    ]
)
ALIBABA = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
pod-0,12000,16384,1,460,V100M16|V100M32,LS,Running,1000,2500,1200
pod-1,12000,16384,0,0,,LS,Running,0,2500,10
pod-2,12000,16384,8,1000,,BE,Succeeded,1100,1300,1250
pod-3,11908,47104,1,1000,,BE,Pending,1001,1403,
"""
HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
77,u1,vc1,8,16,1,COMPLETED,2020-04-01 00:00:30,2020-04-01 00:01:00,2020-04-01 00:02:00,60,30
78,u2,vc2,0,4,1,FAILED,2020-04-01 00:00:00,2020-04-01 00:00:00,2020-04-01 00:00:09,9,0
79,u2,vc2,1,4,1,CANCELLED,2020-04-01 00:00:10,None,None,,0
"""
LUCID = """\
job_id,user,vc,jobname,gpu_num,cpu_num,state,submit_time,duration,dataset,model,batchsize,amp
5,u1,vc1,train,2,16,COMPLETED,120,600,cifar10,ResNet18,64,0
6,u1,vc1,train,1,8,COMPLETED,180,60,,,,1
"""
SACCT = """\
JobID|JobName|User|Account|Partition|State|Submit|Start|End|Elapsed|AllocTRES
123|train|ann|ml|gpu|COMPLETED|2024-01-01T00:00:10|2024-01-01T00:01:00|2024-01-02|1-02:03:04|gres/gpu:a100=4,gres/gpu=4
123.batch|batch||ml||COMPLETED|2024-01-01T00:01:00|2024-01-01T00:01:00|2024-01-02T02:04:04|1-02:03:04|cpu=8,gres/gpu=4
124_4|sweep|bob||gpu|CANCELLED by 1000|2024-01-01T00:00:00|2024-01-01T00:01:00|2024-01-01|00:01:30|gres/gpu:weird=1
125_[1-5]|sweep|bob|ml|gpu|PENDING|2024-01-01T00:00:00|Unknown|Unknown|00:00:00|
126|cpu|bob|ml|cpu|COMPLETED|2024-01-01T00:00:00|2024-01-01T00:01:00|2024-01-01T00:02:30|00:01:30|cpu=4
127|late|bob|ml|gpu|CANCELLED by 7|2024-01-01T00:00:00|None|2024-01-01T00:02:30|00:00:00|gres/gpu=1
128|now|bob|ml|gpu|RUNNING|2024-01-01T00:00:00|2024-01-01T00:01:00|Unknown|00:05:00|gres/gpu=1
"""
_ELASTIC_JOB = {
    "id": "b",
    "submitted_s": 5.25,
    "gpus": 4,
    "gpus_min": 1,
    "gpus_max": 8,
    "steps": 100,
    "model": "LM",
    "deadline_s": 99,
    "gpu_types": ["v100"],
    "adaptation": "gns",
    "regimes": [{"until": 0.5, "batch_size": 10}, {"until": 1, "speed": 2}],
}
NATIVE = f"""\
{{"fairway_trace": 1, "source": "by hand", "skipped": {{"no GPU": 3}}, "notes": ["a remark"]}}
{{"id": "a", "submitted_s": 0, "gpus": 2, "duration_s": 10.5}}

{json.dumps(_ELASTIC_JOB)}
"""

SAMPLES = {
    "fairway": NATIVE,
    "gavel": GAVEL,
    "shockwave": SHOCKWAVE,
    "tiresias": TIRESIAS,
    "muri": MURI,
    "elasticflow": ELASTICFLOW,
    "pollux": POLLUX,
    "philly": PHILLY,
    "philly-json": PHILLY_JSON,
    "alibaba": ALIBABA,
    "helios": HELIOS,
    "sacct": SACCT,
}
