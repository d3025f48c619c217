BEGIN TRANSACTION;
CREATE TABLE alarms (
	device TEXT NOT NULL, 
	alarm TEXT NOT NULL, 
	active BOOLEAN NOT NULL, 
	detector TEXT NOT NULL, 
	verdict TEXT NOT NULL, 
	symptoms JSON NOT NULL, 
	message TEXT NOT NULL, 
	wall FLOAT NOT NULL, 
	received FLOAT NOT NULL, 
	PRIMARY KEY (device, alarm)
);
INSERT INTO "alarms" VALUES('cam-1','a1',1,'loss','accelerator','["black_output"]','Output is black.',990.0,1000.0);
CREATE TABLE blobs (
	sha256 TEXT NOT NULL, 
	size BIGINT NOT NULL, 
	stored FLOAT NOT NULL, 
	PRIMARY KEY (sha256)
);
INSERT INTO "blobs" VALUES('107e0a84a42093a9962fcad070d07adc2764e76fb1de7c350091b21822a2556d',1789,1001.0);
INSERT INTO "blobs" VALUES('ef115a0e0c15cdc41958ca46b5b14b456115f4baec5e3ca68599d2a8f435e3b8',768,1002.0);
CREATE TABLE bundle_blobs (
	device TEXT NOT NULL, 
	bundle TEXT NOT NULL, 
	sha256 TEXT NOT NULL, 
	size BIGINT NOT NULL, 
	PRIMARY KEY (device, bundle, sha256), 
	FOREIGN KEY(device, bundle) REFERENCES bundles (device, bundle)
);
INSERT INTO "bundle_blobs" VALUES('cam-1','bundle-0001','ef115a0e0c15cdc41958ca46b5b14b456115f4baec5e3ca68599d2a8f435e3b8',768);
INSERT INTO "bundle_blobs" VALUES('cam-1','bundle-0001','b5e41af7f8d76bd3cfb5d0c8ba25b67e08ada2df079fc0b800a1a81ac6d955ec',950);
INSERT INTO "bundle_blobs" VALUES('cam-1','bundle-0002','ef115a0e0c15cdc41958ca46b5b14b456115f4baec5e3ca68599d2a8f435e3b8',768);
INSERT INTO "bundle_blobs" VALUES('cam-1','bundle-0002','8ce61ab4eebc05bd22e22455b92b5596b874356253b16983f9d61683ba5cfd2d',950);
CREATE TABLE bundles (
	device TEXT NOT NULL, 
	bundle TEXT NOT NULL, 
	manifest_sha256 TEXT NOT NULL, 
	received FLOAT NOT NULL, 
	created FLOAT NOT NULL, 
	"virtual" BOOLEAN NOT NULL, 
	model TEXT NOT NULL, 
	detector TEXT NOT NULL, 
	verdict TEXT NOT NULL, 
	symptoms JSON NOT NULL, 
	message TEXT NOT NULL, 
	loss FLOAT, 
	state TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	exit_code INTEGER, 
	sentence TEXT NOT NULL, 
	culprit TEXT NOT NULL, 
	culprit_cause TEXT NOT NULL, 
	coverage FLOAT, 
	seconds FLOAT, 
	report BOOLEAN NOT NULL, 
	PRIMARY KEY (device, bundle)
);
INSERT INTO "bundles" VALUES('cam-1','bundle-0001','107e0a84a42093a9962fcad070d07adc2764e76fb1de7c350091b21822a2556d',1001.0,1780000000.0,1,'enhancer','golden','accelerator','["scale_error"]','The golden test fails.',0.9,'waiting_blobs','',NULL,'','','',NULL,NULL,0);
INSERT INTO "bundles" VALUES('cam-1','bundle-0002','09af7fef839054f784c48b22e660ac4c150419d37daefa8c4b2f1ef2b674bfb3',1005.0,1780000000.0,1,'enhancer','golden','accelerator','["scale_error"]','The golden test fails.',0.9,'compared','',1,'Layer conv3 multiplies by 1.5.','conv3','gain',0.9,1.5,1);
CREATE TABLE devices (
	device TEXT NOT NULL, 
	session BIGINT NOT NULL, 
	state TEXT NOT NULL, 
	version TEXT NOT NULL, 
	"virtual" BOOLEAN NOT NULL, 
	model TEXT NOT NULL, 
	phase TEXT NOT NULL, 
	progress FLOAT NOT NULL, 
	alarm TEXT NOT NULL, 
	detail JSON NOT NULL, 
	last_seen FLOAT NOT NULL, 
	PRIMARY KEY (device)
);
INSERT INTO "devices" VALUES('cam-1',3,'online','0.1.0',1,'enhancer','monitoring',1.0,'loss','{"loss": 0.5}',1000.0);
CREATE TABLE schema_version (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "schema_version" VALUES(1);
CREATE TABLE transfers (
	device TEXT NOT NULL, 
	file_id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	size BIGINT NOT NULL, 
	coverage JSON NOT NULL, 
	state TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	init JSON NOT NULL, 
	started FLOAT NOT NULL, 
	updated FLOAT NOT NULL, 
	PRIMARY KEY (device, file_id)
);
INSERT INTO "transfers" VALUES('cam-1','107e0a84a42093a9962fcad070d07adc2764e76fb1de7c350091b21822a2556d','manifest.json',1789,'[]','stored','','{"name": "manifest.json", "size": 1789, "checksum": "107e0a84a42093a9962fcad070d07adc2764e76fb1de7c350091b21822a2556d", "user_data": {"kind": "manifest"}}',1000.0,1001.0);
INSERT INTO "transfers" VALUES('cam-1','b5e41af7f8d76bd3cfb5d0c8ba25b67e08ada2df079fc0b800a1a81ac6d955ec','blob',950,'[[0, 100], [200, 300]]','receiving','','{"name": "blob", "size": 950, "checksum": "b5e41af7f8d76bd3cfb5d0c8ba25b67e08ada2df079fc0b800a1a81ac6d955ec", "user_data": {"kind": "blob"}}',1003.0,1004.0);
CREATE INDEX bundles_by_time ON bundles (received);
CREATE INDEX bundles_by_state ON bundles (state);
CREATE INDEX bundle_blobs_by_hash ON bundle_blobs (sha256);
COMMIT;
